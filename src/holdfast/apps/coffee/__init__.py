"""Coffee-shop analytics: test data, exactly known answers and their comparison."""
