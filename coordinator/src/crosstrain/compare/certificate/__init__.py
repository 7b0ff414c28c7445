"""Local checks of recorded training steps."""

from crosstrain.compare.certificate.certify import Certificate, certify, validate
from crosstrain.compare.certificate.comparison import Check, NotComparable, Problem
from crosstrain.compare.certificate.platform_streams import Data

__all__ = ["Certificate", "Check", "Data", "NotComparable", "Problem", "certify", "validate"]
