"""A model on a data set as a function of one flat parameter vector: gradients, precision, evaluation."""
