"""One failure as a folder that shows it without this project: ``conformance bundle``."""
