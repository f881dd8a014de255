"""dflash trains DFlash drafters: small block-diffusion models that draft a block of tokens for a frozen target.

Tensor and array names end in their shape. The legend, used everywhere in the package:

==  =====================================================
B   rows of a micro-batch
S   width: tokens of a row after padding
F   taps x target hidden size (the features of a position)
H   hidden size of the drafter (equal to the target's)
A   anchors of a micro-batch, ragged over rows, sorted
L   slots of a block (the block size)
N   query heads
K   key and value heads
D   head size
V   vocabulary
M   supervised slots of a micro-batch
==  =====================================================
"""
