"""Draw the letters that come with the package, dml_nb/data/static/glyphs.npz, and put the licences
of their fonts beside them.

    python tools/glyphs.py

Another version of FreeType, Pillow or the fonts makes a file with other bytes, and with it all
results on these letters change: run it only to change what is drawn."""
import shutil
from pathlib import Path

import matplotlib

from dml_nb.data.glyphs import FILE, draw_glyphs, write_glyphs

fonts = Path(matplotlib.get_data_path())/'fonts'/'ttf'

if __name__ == '__main__':
    folder = Path(str(FILE)).parent
    folder.mkdir(exist_ok=True)
    images = draw_glyphs()
    write_glyphs(images, FILE)
    for licence in ('LICENSE_DEJAVU', 'LICENSE_STIX'):
        shutil.copyfile(fonts/licence, folder/licence)
    print(f'{images}\n{images.sha256()}\n{Path(str(FILE)).stat().st_size:,} bytes in {FILE}')
