"Every loss and miner of the book, by name"
from dml_nb.losses.lifted import LiftedStructure, LiftedStructureStar
from dml_nb.losses.multisimilarity import MultiSimilarity, MultiSimilarityMiner
from dml_nb.losses.pairs import BinLifted, Binomial, Contrastive, EqualWeights
from dml_nb.losses.triplet import Triplet

__all__ = ['BinLifted', 'Binomial', 'Contrastive', 'EqualWeights', 'LiftedStructure', 'LiftedStructureStar', 'MultiSimilarity', 'MultiSimilarityMiner', 'Triplet']
