"""What the generators choose from: words, facts, phrasings."""
