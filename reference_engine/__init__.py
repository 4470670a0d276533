"""A small LLM serving engine on which every feature of kvsan, and every bug it finds, can be shown."""
