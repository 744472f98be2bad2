"""Small models of every type that transformers knows, and the checks of a capture from them."""
