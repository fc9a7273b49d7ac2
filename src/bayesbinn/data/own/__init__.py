"""A user's own data: tables, arrays and images."""
