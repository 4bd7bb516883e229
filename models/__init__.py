"""The ground floor: light curves, bundles and networks. Importable without torch except for the networks themselves."""
