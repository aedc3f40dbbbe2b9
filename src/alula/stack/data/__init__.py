"""Product data of the stack planner: addresses of indexes, rules of packages, facts of wheels."""
