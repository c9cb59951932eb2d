"""What users write with: agents, templates, images, and how a project of them is found and loaded."""
