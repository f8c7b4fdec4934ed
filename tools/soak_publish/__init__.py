"""Publishing to real servers, for longer: `make soak-publish`."""
