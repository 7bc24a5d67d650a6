"""What a measurement prints: tables, documents, facts."""
