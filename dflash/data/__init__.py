"""Sources, chat rendering and loss masks, token shards, regeneration, the built-in corpus."""
