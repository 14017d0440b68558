"""Request control: who is asking, whether a request is let in, and what its response is made to say."""
