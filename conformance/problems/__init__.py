"""Problems for a candidate: drawn, chosen at edges or combined; and the tensors made of them.

It may import ``tolerance`` and packages below.
"""
