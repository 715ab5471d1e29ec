// What the site's search finds first: its own worker answers, as in a browser.
// node tests/e2e/site_search.js SITE QUERY...    prints {query: address of the first page} as JSON
const fs = require("fs"), vm = require("vm"), path = require("path");
const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const file = fs.readdirSync(folder).find(name => /^search\..*\.js$/.test(name));
const listeners = [], waiting = [];
const self = {
  addEventListener: (kind, f) => kind === "message" && listeners.push(f),
  postMessage: data => waiting.shift()(data),
  location: new URL("http://localhost/"), importScripts: () => {}, console, setTimeout, clearTimeout, URL,
};
self.self = self; self.global = self; self.window = undefined;
vm.runInNewContext(fs.readFileSync(path.join(folder, file), "utf8"), self);
const ask = data => new Promise(done => { waiting.push(done); for (const f of listeners) f({data}); });
(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  const found = {};
  await ask({type: 0, data: {...index, options: {suggest: false}}});
  for (const query of queries) {
    const {data} = await ask({type: 2, data: query});
    found[query] = data.items.length ? data.items[0][0].location : "";
  }
  console.log(JSON.stringify(found));
})();
