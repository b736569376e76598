"A loss against its definition, and a loss from its formula; the only chapter that loads sympy"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'weights': ['check_weights', 'test_same'],
    'behaviour': ['check_behaviour'],
    'symbolic': ['from_sympy', 'n_neg', 'n_pos', 'neg', 'pos', 'sum_neg', 'sum_pos'],
})
