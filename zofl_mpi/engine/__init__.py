"""Foundation of methods, problems and settings: clients, random streams, messages, exact means, devices."""
