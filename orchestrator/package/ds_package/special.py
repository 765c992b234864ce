"""The packages of which this program knows more than of any other."""

from ds_package.deepspeed import DeepSpeed

SPECIALS = {"deepspeed": DeepSpeed}
