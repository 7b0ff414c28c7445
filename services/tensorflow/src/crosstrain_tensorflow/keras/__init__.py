"""The engine ``keras-tensorflow``: a functional Keras model trained by ``model.fit``."""
