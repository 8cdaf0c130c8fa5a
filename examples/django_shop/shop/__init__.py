"""A small shop: products, customers, orders."""
