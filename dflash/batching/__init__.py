"""Length histogram, exact bucket boundaries, policies, plans and their quality."""
