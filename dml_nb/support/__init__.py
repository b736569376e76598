"What the other modules stand on: argument checks, files that are whole or absent, provenance"
