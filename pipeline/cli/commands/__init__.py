"""The commands, one file for each; `cli.app` names them all."""
