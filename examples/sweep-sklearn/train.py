"""Classify handwritten digits with scikit-learn and report the accuracy after each epoch.

    stoker sweep sweep.yaml

It also runs without stoker: python train.py --alpha=1e-4 --penalty=l2 --eta0=0.01
"""

import argparse

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from stoker.training import report

parser = argparse.ArgumentParser()
parser.add_argument("--alpha", type=float, default=1e-4)
parser.add_argument("--penalty", default="l2")
parser.add_argument("--eta0", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=12)
options = parser.parse_args()

images, digits = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, digits, test_size=0.3, random_state=0)
model = SGDClassifier(
    alpha=options.alpha,
    penalty=options.penalty,
    eta0=options.eta0,
    learning_rate="constant",
    random_state=0,
)
for epoch in range(1, options.epochs + 1):
    model.partial_fit(x, y, classes=range(10))
    accuracy = model.score(x_test, y_test)
    report(accuracy=accuracy, step=epoch)
print(f"accuracy {accuracy:.4f}")
