"""What people read of a lake: SQL, exports, and the pages of `serve`."""
