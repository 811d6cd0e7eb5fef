"""What the adapters for torch and TensorFlow share: the job, process sets, and words for things.

Nothing here imports a framework.
"""
