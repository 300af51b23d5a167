"""Evidence is gathered, judged by the rules and compared."""
