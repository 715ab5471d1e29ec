"""From command-line arguments to a run that is ready: flags, plan, stored configurations, build."""
