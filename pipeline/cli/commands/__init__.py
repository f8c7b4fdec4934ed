"""The commands, one file for each; `cli.app` finds them."""
