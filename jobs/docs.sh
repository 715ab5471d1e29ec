#!/usr/bin/env bash
# Build the site of all pages into build/site: pages, gallery of figures, reference. A broken link ends it with status 1.
#
#   bash jobs/docs.sh                                   # then:
#   python -m http.server -b 127.0.0.1 -d build/site    # the search needs a server; the pages do not
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
bash jobs/environment.sh docs
# shellcheck disable=SC1091
. .venv/bin/activate
export NO_MKDOCS_2_WARNING=1 # of mkdocs-material, about another program
# not --quiet: it silences the warnings that --strict counts
exec mkdocs build --strict --clean --config-file .docs/mkdocs.yml "$@"
