"""The files of a lake: their names, and how they are written so that none is lost."""
