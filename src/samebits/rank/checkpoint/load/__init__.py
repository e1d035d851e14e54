"""How a run resumes from a state: read, checked as a whole, then loaded."""
