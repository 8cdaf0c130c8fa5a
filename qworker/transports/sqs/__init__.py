"""Amazon's SQS, and servers that speak as it does. Modules: ``queue`` (one queue's calls), ``broker``."""
