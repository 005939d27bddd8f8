"""Event files: where events go, under which tag and step, and how records are written."""
