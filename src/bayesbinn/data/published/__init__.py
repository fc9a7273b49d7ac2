"""Named data sets, from their publishers' files or from scikit-learn."""
