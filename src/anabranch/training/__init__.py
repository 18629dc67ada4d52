"""Training on trees of requests.

``layout`` and ``packing`` are numpy alone; ``attention``, ``audit`` and ``loss`` are what a model
needs to see a tree; ``data`` and ``batches`` say what each step is made of; ``sft`` is supervised
training, over ``trainer`` and ``runs``; ``tags`` puts a dialect's tags into a tokenizer, ``texts``
makes trajectories of texts. Nothing is imported here: reading a configuration needs no torch.
"""
