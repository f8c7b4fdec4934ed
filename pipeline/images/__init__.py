"""The images of uploads: downloaded, checked, stored by hash, and handed over."""
