"""From what one types to a run that is ready: flags, plan, stored configurations, build."""
