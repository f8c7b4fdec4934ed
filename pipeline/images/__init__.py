"""The images of uploads: downloaded, checked, stored by their hash, and handed over."""
