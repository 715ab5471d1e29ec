"""The ground that methods, problems and settings stand on: clients, streams, messages, exact means, devices."""
