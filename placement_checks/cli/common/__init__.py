"""Parts that several commands share: options, and output."""
