"""The LLM harness: transcript, requests to models, tools, documents, sections, compaction."""
