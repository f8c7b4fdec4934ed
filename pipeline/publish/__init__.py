"""Publishing of the lake to object storage, for readers on other machines."""
