"""The generated pages and pictures of the documentation, and the documents as lint and tests read them."""
