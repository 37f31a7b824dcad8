"""METEOR 1.5 (Denkowski and Lavie, 2014), the language metric of DenseCap's evaluation (section 4.1).

Implemented from the paper and the observed behaviour of the authors' Java program, whose scores it reproduces to the
last digit. Synonyms and paraphrases are the program's, from the package pycocoevalcap.
"""

from saywhere.evaluation.meteor.scorer import Meteor as Meteor
from saywhere.evaluation.meteor.scorer import pycocoevalcap_module as pycocoevalcap_module
