"""Keras with the callback of stoker.training: Keras 3 alone, or with FLAVOUR=tensorflow Keras 2.

Its data comes in a fixed order.
"""

import os
import time

import numpy
from digest import tell

if os.environ.get("FLAVOUR") == "tensorflow":
    import tensorflow

    keras = tensorflow.keras
else:
    import keras

from stoker.training.keras import StokerCallback

keras.utils.set_random_seed(1)
x = numpy.random.default_rng(1).normal(size=(40, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")


class Told(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)

    def on_epoch_end(self, epoch, logs=None):
        print("trained", epoch, flush=True)


callback = StokerCallback()
model.fit(
    x, x.sum(1), batch_size=4, epochs=int(os.environ["EPOCHS_TO_BE_DONE"]), shuffle=False,
    verbose=0, initial_epoch=callback.initial_epoch, callbacks=[callback, Told()],
)  # fmt: skip
tell(numpy.asarray(array) for array in model.get_weights())
