"""Data sets by name, from their publishers' files or from scikit-learn."""
