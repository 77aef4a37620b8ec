"""Update rules of Alg. 1."""
