"""Read TensorFlow graphs: files, ops and their origins, gradients, the training step."""
