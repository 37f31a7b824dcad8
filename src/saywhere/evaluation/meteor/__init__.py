"""METEOR 1.5 (Denkowski and Lavie, 2014), the language metric of DenseCap's evaluation (section 4.1).

Written from the paper, and from what the authors' Java program was observed to do; its scores are that program's to the
last digit. The words that mean the same are those of the program, from the package pycocoevalcap.
"""

from saywhere.evaluation.meteor.scorer import Meteor as Meteor
from saywhere.evaluation.meteor.scorer import pycocoevalcap_module as pycocoevalcap_module
